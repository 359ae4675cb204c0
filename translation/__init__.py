"""Text translation around fairseq: preparing data, plain-text decoding, scoring."""

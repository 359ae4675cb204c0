"""Image captioning around fairseq: COCO data, timm features, CIDEr-D. Not there yet."""

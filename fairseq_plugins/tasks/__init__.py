"""Tasks, registered with fairseq."""

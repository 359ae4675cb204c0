"""Tests run as on a machine without a GPU, with one thread a process."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OMP_NUM_THREADS", "1")

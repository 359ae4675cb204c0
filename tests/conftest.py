"""Tests run as on a machine without a GPU, with one thread a process."""

import os

import pytest

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items):
    if not os.environ.get("DATA"):
        reason = "needs real data: make test-data DATA=FOLDER"
        for item in items:
            if item.get_closest_marker("data"):
                item.add_marker(pytest.mark.skip(reason=reason))

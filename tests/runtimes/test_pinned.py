"""Pinned buffers, with a runtime that notes what it is asked."""

import gc

import numpy as np

from hopline.runtimes.pinned import pinned


class Runtime:
    def __init__(self, code=0):
        self.code, self.held = code, {}

    def cudaHostRegister(self, pointer, num_bytes, flags):
        if self.code == 0:
            self.held[pointer.value] = num_bytes.value
        return self.code

    def cudaHostUnregister(self, pointer):
        del self.held[pointer.value]
        return 0


def test_buffers_are_pinned_as_long_as_they_live():
    runtime = Runtime()
    arrays = [np.zeros((4, 8), np.float32), np.zeros(16, np.float32)]
    assert pinned(arrays, runtime) == 2
    assert runtime.held == {array.ctypes.data: array.nbytes for array in arrays}
    arrays.clear()
    gc.collect()
    assert runtime.held == {}


def test_what_cannot_be_pinned_is_told_and_works_all_the_same(caplog):
    array = np.zeros(8, np.float32)
    assert pinned([array], Runtime(code=2)) == 0
    assert "1 of 1 buffers are not pinned: CUDA error 2" in caplog.text
    assert array.sum() == 0

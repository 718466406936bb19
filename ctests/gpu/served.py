"""Which library serves NCCL's functions in this process. Needs no framework."""

import ctypes


def served_by():
    """Path of the library behind ncclAllReduce in this process, and how it calls itself."""

    class DlInfo(ctypes.Structure):
        _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]

    nccl = ctypes.CDLL("libnccl.so.2")
    info = DlInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(nccl.ncclAllReduce, ctypes.c_void_p), ctypes.byref(info))
    version = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    product = "not OxCCL"
    if hasattr(nccl, "oxcclVersion"):
        nccl.oxcclVersion.restype = ctypes.c_char_p
        product = "OxCCL " + nccl.oxcclVersion().decode()
    return f"{info.file.decode()}: {product}, ncclGetVersion {version.value}"

"""What can go wrong: one exception for each status code of the library. Messages are the library's, and name field, value
and limit."""
from __future__ import annotations


class FlashKilnError(RuntimeError):
    """Any failure of the library. `status` is the code's name in the C interface, such as "FK_BAD_PROBLEM"."""
    status = ""


class BadArgument(FlashKilnError, ValueError):
    """A run-time argument: a shape, a stride, a pointer, an option."""
    status = "FK_BAD_ARGUMENT"


class BadProblem(FlashKilnError, ValueError):
    """What is asked for is invalid; of an expression, the message shows the column."""
    status = "FK_BAD_PROBLEM"


class Unsupported(FlashKilnError):
    """Valid, but nothing covers it on this GPU."""
    status = "FK_UNSUPPORTED"


class NoDevice(FlashKilnError):
    """No such GPU, or no usable driver on this machine."""
    status = "FK_NO_DEVICE"


class NoCompiler(FlashKilnError):
    """NVRTC (or, for the emulator, a C++ compiler) cannot be found."""
    status = "FK_NO_COMPILER"


class CompileFailed(FlashKilnError):
    """The compiler refused a kernel's text."""
    status = "FK_COMPILE_FAILED"


class NoJit(FlashKilnError):
    """Compiling is forbidden, and the store does not hold the kernel."""
    status = "FK_NO_JIT"


class OutOfMemory(FlashKilnError, MemoryError):
    """Host or device memory is exhausted."""
    status = "FK_NO_MEMORY"


class IoError(FlashKilnError):
    """A file or directory could not be read or written."""
    status = "FK_IO"


class TemplateError(FlashKilnError):
    """A Lua template failed; the message holds file and line."""
    status = "FK_TEMPLATE_ERROR"


class LaunchFailed(FlashKilnError):
    """The driver refused a load or a launch, or the kernel faulted."""
    status = "FK_LAUNCH_FAILED"


class CheckFailed(FlashKilnError):
    """The device refuses a stored kernel, and compiling it anew is forbidden."""
    status = "FK_CHECK_FAILED"


class Internal(FlashKilnError):
    """A bug in the library."""
    status = "FK_INTERNAL"


BY_STATUS = {kind.status: kind for kind in FlashKilnError.__subclasses__()}

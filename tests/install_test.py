#!/usr/bin/env python3
"""Installs a build folder, compiles the example against nothing but that, with either library, and runs it.

Usage: install_test.py BUILD SOURCE COMPILER [FLAGS...]
"""
import os
import shlex
import subprocess
import sys
import tempfile


def output(*command, **environment):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, **environment}).stdout


def check_multiarch(folder, root):
    """The .pc file of Debian's folder for libraries, which is one deeper, finds its prefix too."""
    libdir, prefix = os.path.join("lib", "x86_64-linux-gnu"), os.path.join(folder, "debian")
    build, pkgconfig = os.path.join(folder, "build"), os.path.join(prefix, libdir, "pkgconfig")
    output("cmake", "-S", root, "-B", build, "-G", "Ninja", "-DFK_TESTS=OFF", f"-DCMAKE_INSTALL_LIBDIR={libdir}")
    os.makedirs(pkgconfig)
    os.rename(os.path.join(build, "flashkiln.pc"), os.path.join(pkgconfig, "flashkiln.pc"))
    for name, place in (("prefix", ""), ("libdir", libdir), ("includedir", "include")):
        told = output("pkg-config", f"--variable={name}", "flashkiln", PKG_CONFIG_PATH=pkgconfig).strip()
        assert os.path.normpath(told) == os.path.normpath(os.path.join(prefix, place)), f"{name}: {told}"


def check_subdirectory(folder, root):
    """Within another project, which has no wish for tests, the library is a target."""
    source, build = os.path.join(folder, "user"), os.path.join(folder, "user", "build")
    os.makedirs(source)
    with open(os.path.join(source, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write("cmake_minimum_required(VERSION 3.20)\nproject(user C)\n"
                   f'add_subdirectory("{root}" flashkiln)\nadd_executable(user "{root}/examples/attention.c")\n'
                   "target_link_libraries(user PRIVATE flashkiln_static)\n")
    output("cmake", "-S", source, "-B", build, "-G", "Ninja")
    output("cmake", "--build", build, "--target", "flashkiln/embedded.c")


def main():
    build, source, *compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="fk_install_test_") as folder:
        first, prefix = os.path.join(folder, "first"), os.path.join(folder, "moved")
        output("cmake", "--install", build, "--prefix", first)
        os.rename(first, prefix)
        found = [os.path.join(at, name) for at, _, names in os.walk(prefix) for name in names]
        pkgconfig, = [os.path.dirname(path) for path in found if path.endswith("/flashkiln.pc")]
        lib = os.path.dirname(pkgconfig)
        pc = lambda *options: shlex.split(output("pkg-config", *options, "flashkiln", PKG_CONFIG_PATH=pkgconfig))
        archive = os.path.join(lib, "libflashkiln.a")
        static = [archive if word == "-lflashkiln" else word for word in pc("--static", "--libs")]
        for kind, libraries in (("shared", [*pc("--libs"), f"-Wl,-rpath,{lib}"]), ("static", static)):
            program = os.path.join(folder, kind)
            output(*compiler, source, *pc("--cflags"), "-o", program, *libraries)
            told = output(program, FLASHKILN_CACHE_DIR=os.path.join(folder, "cache"))
            assert told == "1, 1/2, ...\n", f"{kind}: {told!r}"
        told = output(os.path.join(prefix, "bin", "flashkiln"), "plan", "fwd", "bf16", "d128")
        assert "block_m" in told, told
        check_subdirectory(folder, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        check_multiarch(folder, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    print("installed: the program runs, and the example with either library")


if __name__ == "__main__":
    main()

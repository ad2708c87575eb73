"""Where NVRTC of a PyPI package is looked for: folders as the packages lay them out, empty files for libraries."""
import importlib
import os
import sys

import pytest

from flashkiln import _nvrtc


@pytest.fixture
def install(tmp_path, monkeypatch):
    """install(site, version): makes the package in a folder of sys.path; returns the folder of its libraries."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    monkeypatch.setenv("FLASHKILN_CUDA_LIB", "")  # so that it is put back, too
    monkeypatch.delenv("FLASHKILN_CUDA_LIB")
    monkeypatch.setattr(_nvrtc, "driver_version", lambda: None)

    def make(site, version):
        folder, library = _nvrtc.PACKAGES[version]
        lib = tmp_path / site / "nvidia" / folder
        lib.mkdir(parents=True)
        (lib / library).touch()
        if str(tmp_path / site) not in sys.path:
            monkeypatch.setattr(sys, "path", [str(tmp_path / site), *sys.path])
            importlib.invalidate_caches()
        return str(lib)

    return make


def test_nothing_is_installed(install):
    assert _nvrtc.find() is None
    _nvrtc.use()
    assert "FLASHKILN_CUDA_LIB" not in os.environ


@pytest.mark.parametrize("version", _nvrtc.PACKAGES)
def test_one_package(install, version):
    folder = install("site", version)
    _nvrtc.use()
    assert os.environ["FLASHKILN_CUDA_LIB"] == folder


def test_the_users_word_counts(install, monkeypatch):
    install("site", 13)
    monkeypatch.setenv("FLASHKILN_CUDA_LIB", "/elsewhere")
    _nvrtc.use()
    assert os.environ["FLASHKILN_CUDA_LIB"] == "/elsewhere"


def test_the_nearest_of_two_environments(install):
    install("below", 13)
    folder = install("above", 13)
    assert _nvrtc.find() == folder


def test_a_folder_without_the_library_is_passed_over(install, tmp_path):
    folder = install("below", 12)
    os.remove(os.path.join(install("above", 12), "libnvrtc.so.12"))
    assert _nvrtc.find() == folder


@pytest.mark.parametrize("driver, chosen", [(None, 13), (14, 13), (13, 13), (12, 12), (11, 13)])
def test_two_packages_and_a_driver(install, monkeypatch, driver, chosen):
    folders = {version: install("site", version) for version in (12, 13)}
    monkeypatch.setattr(_nvrtc, "driver_version", lambda: driver)
    assert _nvrtc.find() == folders[chosen]


def test_no_driver_is_no_error(monkeypatch):
    monkeypatch.setenv("FLASHKILN_LIBCUDA", "/nowhere/libcuda.so.1")
    assert _nvrtc.driver_version() is None

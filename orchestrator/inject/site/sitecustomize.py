"""Loads profrun's part, takes this folder off the path again, and gives way to the sitecustomize that it stands for."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _folder() -> str:
    return __file__.rpartition("/")[0]


def _load_profrun() -> None:
    """The folder above, as the package `_profrun`: under that name none of its modules can be mistaken for another."""
    import _frozen_importlib as bootstrap
    import _frozen_importlib_external as files

    home = _folder().rpartition("/")[0]
    loader = files.SourceFileLoader("_profrun", home + "/__init__.py")
    spec: Any = files.spec_from_file_location(
        "_profrun", home + "/__init__.py", loader=loader, submodule_search_locations=[home]
    )
    sys.modules["_profrun"] = package = bootstrap.module_from_spec(spec)
    loader.exec_module(package)
    from _profrun import boot  # type: ignore[import-not-found]

    boot.start()


def _give_way() -> None:
    """What this interpreter would have imported as sitecustomize without us; without one, its search fails as it would
    have failed, and leaves nothing of us behind."""
    from _frozen_importlib import module_from_spec

    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    spec = next(filter(None, (finder.find_spec("sitecustomize", None) for finder in finders)), None)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    sys.modules["sitecustomize"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


sys.path[:] = [place for place in sys.path if place != _folder()]
try:
    _load_profrun()
except Exception:  # the program must start whatever is wrong with us; profrun notices that nobody has signed in
    pass
_give_way()

"""Memory systems under one protocol. The package is also a function: `adaptmr.systems()` lists every system's name."""
import sys
from types import ModuleType


class _Systems(ModuleType):
    def __call__(self) -> list[str]:
        """Every system's name, in the order of tables."""
        from adaptmr.systems.base import known_systems
        return list(known_systems())


sys.modules[__name__].__class__ = _Systems

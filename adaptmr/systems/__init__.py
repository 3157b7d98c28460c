"""Memory systems under one protocol. `adaptmr.systems()` lists the names of all systems."""
import sys
from types import ModuleType


class _Systems(ModuleType):
    def __call__(self) -> list[str]:
        """Return the names of all systems, in the order of tables."""
        from adaptmr.systems.base import known_systems
        return list(known_systems())


sys.modules[__name__].__class__ = _Systems

"""What compilers need besides compiling: settings, logs, timers, a cache, comparison.

Nothing here imports torch until a function that needs it is called; fake tensors live
in the submodule `plait_utils.fake`, comparison of tensors in `plait_utils.numerics`.
"""

from plait_utils._version import __version__
from plait_utils.cache import CacheError, DiskCache, default_cache_root
from plait_utils.commands import command_words
from plait_utils.config import SettingError, Settings, setting
from plait_utils.dump import DumpFolder, dump_folder
from plait_utils.errors import PlaitError, shown
from plait_utils.garbage import collection_threshold, postponed_collections
from plait_utils.hashing import stable_hash
from plait_utils.late_exports import late_exports
from plait_utils.libraries import find_library_damage
from plait_utils.log import get_logger, warn_once
from plait_utils.processors import processor_vendor, usable_processors
from plait_utils.profile import Profile
from plait_utils.records import dataclass

__all__ = [
    "CacheError",
    "DiskCache",
    "DumpFolder",
    "PlaitError",
    "Profile",
    "SettingError",
    "Settings",
    "__version__",
    "collection_threshold",
    "command_words",
    "dataclass",
    "default_cache_root",
    "dump_folder",
    "find_library_damage",
    "get_logger",
    "late_exports",
    "postponed_collections",
    "processor_vendor",
    "setting",
    "shown",
    "stable_hash",
    "usable_processors",
    "warn_once",
]

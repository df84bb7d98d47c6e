"""Every option of a run: what it means and its range, how options must agree, and how they are read from text."""

from proxima.config.config import (
    SECTIONS,
    Config,
    all_options,
    changes_at_resume,
    compared_options,
    config_from_dict,
    env_keywords,
    find_option,
    load_config,
)
from proxima.config.defaults import Traits, settle
from proxima.config.presets import all_presets

__all__ = [
    "SECTIONS",
    "Config",
    "Traits",
    "all_options",
    "all_presets",
    "changes_at_resume",
    "compared_options",
    "config_from_dict",
    "env_keywords",
    "find_option",
    "load_config",
    "settle",
]

"""Every option of a run: meaning and range, consistency checks, parsing from YAML and flags."""

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
from proxima.config.defaults import Traits, settle, suited_options
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
    "suited_options",
]

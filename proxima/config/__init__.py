"""Every option of a run: what it means and its range, how options must agree, and how they are read from text."""

from proxima.config.config import (
    SECTIONS,
    Config,
    all_options,
    config_from_dict,
    find_option,
    load_config,
    option_names,
)

__all__ = ["SECTIONS", "Config", "all_options", "config_from_dict", "find_option", "load_config", "option_names"]

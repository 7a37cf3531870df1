"""Every key of a configuration: sections, types, defaults and limits."""

"""Whether the sources of a target are compiled in groups (rules_cc/cc/defs.bzl)."""

def _unity_setting_impl(_ctx):
    return []

unity_setting = rule(implementation = _unity_setting_impl, build_setting = config.bool(flag = True))

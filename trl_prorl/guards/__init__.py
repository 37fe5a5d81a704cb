"""Guards against NaN, collapsed policies and reward hacking."""

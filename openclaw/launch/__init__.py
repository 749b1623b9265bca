"""From a launch script's two lines to a running trainer: variables, profile and flags become one validated plan."""

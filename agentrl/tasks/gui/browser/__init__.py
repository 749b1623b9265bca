"""A real Chromium in a sandbox, driven from outside by the DevTools protocol: playwright or selenium carries its commands."""

"""SGLang engines: server process, command line, Ray actor, router and CPU stand-ins."""

"""``--train-backend tinker``: a service that speaks the Tinker interface trains and samples, and this machine does the rest."""

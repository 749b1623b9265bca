"""Training core: arguments, Ray, engines, rollouts, algorithms, back ends, weight sync, checkpoints, tracking."""

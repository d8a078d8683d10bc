"""The operators' results by definition, in numpy: float64 for floats, exact for integers. What every backend is held
to."""

"""Reading and writing other libraries' formats."""

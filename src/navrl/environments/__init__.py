"""Tasks that can be trained: the table of environments, and other libraries' under our contract."""

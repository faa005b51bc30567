"""Pictures for people: worlds from above, flights, animations."""

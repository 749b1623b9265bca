"""Stand-ins and builders shared by the tests."""

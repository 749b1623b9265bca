"""Every command that a page shows: extracted, classified by a rule, and run or checked."""

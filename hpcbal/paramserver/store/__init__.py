"""Where parameters are: how tables are cut, who owns which block, and how blocks move under load. No IO."""

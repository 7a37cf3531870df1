"""A worker of a parameter-server job, without IO: engine and simulator drive the same one."""

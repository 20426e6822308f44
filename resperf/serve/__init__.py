"""A service on this machine and its page: what `resperf predict` answers, over HTTP."""

package prepare

// Wrap makes prepare work on what f makes of the repository.
func (c *Config) Wrap(f func(Repo) Repo) { c.wrap = f }

package prepare

// Wrap makes prepare use what f returns for the repository.
func (c *Config) Wrap(f func(Repo) Repo) { c.wrap = f }

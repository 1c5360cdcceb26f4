package connections

import (
	"fmt"

	"github.com/spf13/pflag"
)

// burstSeconds is for how many seconds an idle address may save up connections.
const burstSeconds = 4

// Limits bound the connections of a listener.
type Limits struct {
	// Total is how many there may be: as many as fit into the container's memory.
	Total int
	// Strangers is how many of them may be of callers who have not authenticated yet, and
	// StrangersPerAddress how many of those may come from one address.
	Strangers, StrangersPerAddress int
	// PerSecond is how many a second may be opened from one address, in the long run.
	PerSecond int
}

// defaults suit a container of 512 MiB: some 40 KiB per connection of a daemon, and
// 250 KiB for the worst that a stranger can send.
var defaults = Limits{Total: 6000, Strangers: 1000, StrangersPerAddress: 64, PerSecond: 50}

// AddFlags defines the flags of the limits, with their defaults.
func (l *Limits) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&l.Total, "max-connections", defaults.Total, "connections that may be open at once; one namespace may have half of them. Further ones wait, and those of a namespace that already has its half are served, but closed within half a minute")
	flags.IntVar(&l.Strangers, "max-unknown-connections", defaults.Strangers, "connections of callers who have not authenticated yet, at once; the last third is reserved for addresses that have none")
	flags.IntVar(&l.StrangersPerAddress, "max-unknown-connections-per-address", defaults.StrangersPerAddress, "connections from one address of callers who have not authenticated yet, at once; further ones wait")
	flags.IntVar(&l.PerSecond, "new-connections-per-second", defaults.PerSecond, fmt.Sprintf("connections per second that may be opened from one address, in the long run, and %d times as many at once; further ones wait. Many pods share an address behind network address translation, or on their node's network", burstSeconds))
}

// Validate returns an error for the first flag with an invalid value. Zero Limits are
// valid: they stand for the defaults.
func (l *Limits) Validate() error {
	if *l == (Limits{}) {
		return nil
	}
	for _, amount := range []struct {
		flag        string
		given, most int
	}{
		{"--max-connections", l.Total, 1 << 20},
		{"--max-unknown-connections", l.Strangers, l.Total},
		{"--max-unknown-connections-per-address", l.StrangersPerAddress, l.Strangers},
		{"--new-connections-per-second", l.PerSecond, 1 << 20},
	} {
		if amount.given < 1 || amount.given > amount.most {
			return fmt.Errorf("%s must be from 1 to %d, not %d", amount.flag, amount.most, amount.given)
		}
	}
	return nil
}

package connections

import (
	"fmt"

	"github.com/spf13/pflag"
)

// burstSeconds is for how many seconds an address may have saved up connections.
const burstSeconds = 4

// Limits bound the connections of a listener.
type Limits struct {
	// InAll is how many there may be: so many as fit the container's memory.
	InAll int
	// Strangers is how many of them may be of those who have not shown yet who they
	// are, and StrangersOfAddress how many from one address.
	Strangers, StrangersOfAddress int
	// PerSecond is how many may be opened from one address, in the long run.
	PerSecond int
}

// defaults suit a container of 512 MiB: some 40 KiB for each connection of a daemon,
// and 250 KiB for the worst that a stranger can send.
var defaults = Limits{InAll: 6000, Strangers: 1000, StrangersOfAddress: 64, PerSecond: 50}

// AddFlags defines the flags of the limits, with their defaults.
func (l *Limits) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&l.InAll, "max-connections", defaults.InAll, "connections that may be open at once, and half as many of one namespace; further ones wait, and those of a namespace that has its half are served and closed within half a minute")
	flags.IntVar(&l.Strangers, "max-unknown-connections", defaults.Strangers, "connections of callers who have not shown yet who they are, at once; the last third is for addresses that have none")
	flags.IntVar(&l.StrangersOfAddress, "max-unknown-connections-per-address", defaults.StrangersOfAddress, "connections of callers from one address who have not shown yet who they are, at once; further ones wait")
	flags.IntVar(&l.PerSecond, "new-connections-per-second", defaults.PerSecond, fmt.Sprintf("connections that may be opened from one address in a second, in the long run, and %d times as many at once; further ones wait. Many pods have one address where a network translates addresses, or where they use their node's", burstSeconds))
}

// Validate says which of the flags has a value that cannot be. Limits that say nothing
// are the defaults.
func (l *Limits) Validate() error {
	if *l == (Limits{}) {
		return nil
	}
	for _, amount := range []struct {
		flag        string
		given, most int
	}{
		{"--max-connections", l.InAll, 1 << 20},
		{"--max-unknown-connections", l.Strangers, l.InAll},
		{"--max-unknown-connections-per-address", l.StrangersOfAddress, l.Strangers},
		{"--new-connections-per-second", l.PerSecond, 1 << 20},
	} {
		if amount.given < 1 || amount.given > amount.most {
			return fmt.Errorf("%s must be from 1 to %d, not %d", amount.flag, amount.most, amount.given)
		}
	}
	return nil
}

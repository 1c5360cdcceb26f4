package cli

import (
	"fmt"
	"time"
)

// clockSkew is how far the user's clock may be behind the cluster's: a time that was copied from
// an output may be that much in the future here.
const clockSkew = time.Minute

// pastMoment parses a point in time that is not in the future. A duration is counted from the
// present second, since times are shown without fractions.
func (p *plugin) pastMoment(flag, text string) (time.Time, error) {
	at, err := p.parseMoment(flag, text)
	if err != nil {
		return at, err
	}
	if now := p.clock(); at.After(now.Add(clockSkew)) {
		return at, fmt.Errorf("%s is %q, which is in the future: it is %s now; name a time that has been", flag, text, p.stamp(now))
	}
	if _, err := time.Parse(time.RFC3339, text); err != nil {
		at = at.Truncate(time.Second)
	}
	return at, nil
}

// timeTarget returns the target that a time names.
func (p *plugin) timeTarget(flag, text string) (*rewindTarget, error) {
	at, err := p.pastMoment(flag, text)
	if err != nil {
		return nil, err
	}
	return &rewindTarget{field: "time", value: at.UTC().Format(time.RFC3339Nano), text: p.stamp(at)}, nil
}

// messageTarget returns the target that a message's position names.
func messageTarget(position int64) *rewindTarget {
	return &rewindTarget{field: "message", value: position, text: fmt.Sprintf("message %d", position)}
}

package gateway

import (
	"fmt"

	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
)

// rewoundFault describes what is wrong with what a rewind says that it has done. Whether that is
// true only concerns who undoes it, who checks it.
func rewoundFault(r *history.Rewound) string {
	switch {
	case r == nil:
		return ""
	case len(r.Scope) > maxNameBytes:
		return fmt.Sprintf("has a scope of more than %d bytes", maxNameBytes)
	case len(r.Paths) > daemonapi.MaxRewindPaths:
		return fmt.Sprintf("names %d paths; at most %d are possible", len(r.Paths), daemonapi.MaxRewindPaths)
	}
	for _, path := range r.Paths {
		if len(path) > daemonapi.MaxRewindPathBytes {
			return fmt.Sprintf("names a path of %d bytes; at most %d are possible", len(path), daemonapi.MaxRewindPathBytes)
		}
	}
	return ""
}

func rewoundOf(r *daemonv1.Rewound) *history.Rewound {
	if r == nil {
		return nil
	}
	return &history.Rewound{Scope: r.GetScope(), Paths: r.GetPaths(), From: r.GetFromCheckpoint(), To: r.GetToCheckpoint()}
}

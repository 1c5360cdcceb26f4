package gateway

import (
	"context"
	"fmt"
	"testing"

	"github.com/clew-dev/clew/internal/places"
)

func TestNoNamespaceGetsAllConnections(t *testing.T) {
	now, cancel := context.WithCancel(t.Context())
	cancel() // nobody waits
	for connections := 3; connections <= 64; connections++ {
		s, took := newShares(1, connections), 0
		for i := range 2 * connections {
			_, err := s.requests.Take(now, places.Share{Of: fmt.Sprint("task/", i), Places: placesOfTask},
				places.Share{Of: "namespace/a", Places: s.requestsOfNamespace})
			if err == nil {
				took++
			}
		}
		if took < 1 || took >= connections {
			t.Errorf("a namespace gets %d of %d connections", took, connections)
		}
	}
}

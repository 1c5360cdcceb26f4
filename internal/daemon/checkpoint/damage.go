package checkpoint

import (
	"errors"
	"slices"
	"strings"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// MetDamage reports whether a push failed in a way that damaged objects in the gitstore explain.
// Others are possible: the volume may lack objects as well.
func MetDamage(err error) bool {
	var git interface{ Stderr() string }
	if !errors.As(err, &git) {
		return false
	}
	said := git.Stderr()
	return slices.ContainsFunc([]string{gitstoreapi.DamagedObjects, "did not receive expected object", "missing necessary objects"},
		func(words string) bool { return strings.Contains(said, words) })
}

package publish_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// TestACheckpointThatIsDamagedInTheGitstoreIsReportedAsSuch: the gitstore can be reached, and heals it
// if there is a copy of what is damaged.
func TestACheckpointThatIsDamagedInTheGitstoreIsReportedAsSuch(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"missing":   os.Remove,
		"empty":     func(path string) error { return overwrite(path, nil) },
		"scrambled": func(path string) error { return overwrite(path, []byte("not an object of git")) },
	} {
		for _, what := range []string{"left.txt", ""} {
			t.Run(name+" "+what, func(t *testing.T) {
				s := newStage(t)
				store := filepath.Join(s.git.Dir, "store.git")
				id := s.git.Run(t, store, "rev-parse", s.last+":"+what)
				if err := damage(filepath.Join(store, "objects", id[:2], id[2:])); err != nil {
					t.Fatal(err)
				}
				s.want(s.run(t.Context()), v1alpha1.ReasonCheckpointCorrupted, true, "checkpoint 1 could not be fetched", "cannot read all of it", id)
			})
		}
	}
}

// overwrite replaces a file that cannot be written to.
func overwrite(path string, contents []byte) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.WriteFile(path, contents, 0o400)
}

package cli_test

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/clew-dev/clew/internal/cli"
	"github.com/clew-dev/clew/internal/reason"
)

func TestTheCommandsThatTheTableOfReasonsAdvisesExist(t *testing.T) {
	quoted := regexp.MustCompile("`kubectl clew ([a-z -]+)`")
	commands := 0
	for _, r := range reason.All() {
		for _, found := range quoted.FindAllStringSubmatch(r.Todo, -1) {
			commands++
			root := cli.New(genericiooptions.NewTestIOStreamsDiscard(), cli.Options{})
			command, rest, err := root.Find(strings.Fields(found[1]))
			if err != nil {
				t.Errorf("%s advises `kubectl clew %s`: %v", r.Name, found[1], err)
				continue
			}
			if len(rest) > 0 || !command.Runnable() {
				t.Errorf("%s advises `kubectl clew %s`, which is not a command", r.Name, found[1])
			}
		}
	}
	if commands == 0 {
		t.Error("the table of reasons advises no command")
	}
}

package reason_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/reason"
)

// constants returns the constants of api/v1alpha1 that name a reason, and their values.
func constants(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/reasons.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name := spec.Names[0].Name
		if !strings.HasPrefix(name, "Reason") && !strings.HasPrefix(name, "Event") {
			return true
		}
		if values[name], err = strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value); err != nil {
			t.Fatal(err)
		}
		return true
	})
	return values
}

// declared returns the values of those constants, each once: DriftDetected is a reason and an Event.
func declared(t *testing.T) []string {
	t.Helper()
	return slices.Compact(slices.Sorted(maps.Values(constants(t))))
}

func TestEveryReasonOfTheAPIIsInTheTableOnce(t *testing.T) {
	var names []string
	for _, r := range reason.All() {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	if diff := cmp.Diff(declared(t), names); diff != "" {
		t.Errorf("declared (-) and in the table (+):\n%s", diff)
	}
}

func TestEveryReasonSaysWhereItOccursAndWhatItMeans(t *testing.T) {
	for _, r := range reason.All() {
		if len(r.On) == 0 {
			t.Errorf("%s occurs nowhere", r.Name)
		}
		for what, text := range map[string]string{"meaning": r.Meaning, "advice": r.Todo} {
			if text == "" && what == "advice" {
				continue
			}
			if !strings.HasSuffix(text, ".") || strings.ToUpper(text[:1]) != text[:1] {
				t.Errorf("%s: its %s is not a sentence: %q", r.Name, what, text)
			}
		}
	}
}

func TestEveryFailureSaysWhatToDo(t *testing.T) {
	nothingToDo := []string{v1alpha1.ReasonCompleted, v1alpha1.ReasonDeleting, v1alpha1.ReasonReplaced, v1alpha1.ReasonFenced}
	for _, r := range reason.At("Task", v1alpha1.TaskSucceeded) {
		if r.Standing != reason.Failed || r.DaemonProblem {
			continue
		}
		if r.Todo == "" && !slices.Contains(nothingToDo, r.Name) {
			t.Errorf("%s needs a person, but does not say what to do", r.Name)
		}
	}
}

// What a resume or a rewind would do about it, it does not do about publishing.
func TestEveryReasonNotToBePublishedNamesAFieldOfPublish(t *testing.T) {
	place := reason.Place{Kind: "Task", Condition: v1alpha1.TaskPublished}
	notFalse := []string{v1alpha1.ReasonPublished, v1alpha1.ReasonPublishPending, v1alpha1.ReasonPushAnnounced, v1alpha1.ReasonPublishing, v1alpha1.ReasonNothingToPublish}
	for _, r := range reason.At(place.Kind, place.Condition) {
		todo := r.TodoAt(place)
		switch {
		case slices.Contains(notFalse, r.Name) && todo != "":
			t.Errorf("%s needs nobody, but says %q", r.Name, todo)
		case !slices.Contains(notFalse, r.Name) && !strings.Contains(todo, "`publish."):
			t.Errorf("%s says %q, which names no field of publish", r.Name, todo)
		}
	}
}

func TestAReasonOfAnotherVersionIsAFailureAndNoDaemonsProblem(t *testing.T) {
	if diff := cmp.Diff(reason.Reason{Name: "SolarFlare"}, reason.Find("SolarFlare")); diff != "" {
		t.Error(diff)
	}
}

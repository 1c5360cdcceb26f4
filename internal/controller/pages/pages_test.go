package pages_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/pages"
)

// reader has so many Tasks, and lists them as an API server does, or, as the cache, without pages.
type reader struct {
	client.Reader
	tasks  int
	cached bool
	// most is how many it has listed at once.
	most int
}

func (r *reader) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if r.cached && (asked.Limit > 0 || asked.Continue != "") {
		return fmt.Errorf("the cache has no pages, and was asked for %+v", asked)
	}
	from, to := 0, r.tasks
	if asked.Continue != "" {
		from, _ = strconv.Atoi(asked.Continue)
	}
	if asked.Limit > 0 {
		to = min(to, from+int(asked.Limit))
	}
	page := list.(*v1alpha1.TaskList)
	for i := range to - from {
		task := v1alpha1.Task{}
		task.Name = strconv.Itoa(from + i)
		page.Items = append(page.Items, task)
	}
	if to < r.tasks {
		page.Continue = strconv.Itoa(to)
	}
	if r.cached {
		page.Continue = "continue-not-supported"
	}
	r.most = max(r.most, len(page.Items))
	return nil
}

func TestObjectsAreReadAFewAtATime(t *testing.T) {
	for name, test := range map[string]struct {
		reader reader
		size   int64
		most   int
	}{
		"from the API server": {reader{tasks: 45}, pages.Size, 20},
		"a full last page":    {reader{tasks: 40}, pages.Size, 20},
		"none":                {reader{}, pages.Size, 0},
		"from the cache":      {reader{tasks: 45, cached: true}, 0, 45},
	} {
		t.Run(name, func(t *testing.T) {
			var names, want []string
			err := pages.Each(t.Context(), &test.reader, test.size, func(page *v1alpha1.TaskList) {
				for i := range page.Items {
					names = append(names, page.Items[i].Name)
				}
			}, client.InNamespace("team"))
			for i := range test.reader.tasks {
				want = append(want, strconv.Itoa(i))
			}
			if err != nil || !slices.Equal(names, want) || test.reader.most != test.most {
				t.Errorf("%d at once, %v, %v", test.reader.most, names, err)
			}
		})
	}
}

package task

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// seen is a task as the cache has it: with so many transitions, and a place in the room or not.
type seen struct {
	name     string
	sequence int64
	holds    bool
}

func occupied(tasks ...seen) occupants {
	list := make([]v1alpha1.Task, 0, len(tasks))
	for _, s := range tasks {
		t := builders.Task(s.name, builders.WithUID(s.name))
		t.Status.HistorySequence = s.sequence
		if s.holds {
			t.Status.Contract = &v1alpha1.ContractStatus{Name: "port"}
		}
		list = append(list, *t)
	}
	return occupantsOf(list, func(t *v1alpha1.Task) bool { return t.Status.Contract != nil })
}

// TestWhoGetsTheLastPlaceOfARoom: a has got a place by the write of its transition 5. That place counts
// until the cache shows the transition, and from then on what the cache shows does.
func TestWhoGetsTheLastPlaceOfARoom(t *testing.T) {
	port := room{contractRoom, "default", "port"}
	for name, c := range map[string]struct {
		cache  []seen
		places int
		asks   types.UID
		want   bool
	}{
		"the cache shows nothing of it yet":       {[]seen{{"a", 4, false}, {"b", 1, false}}, 1, "b", false},
		"the same task asks again":                {[]seen{{"a", 4, false}}, 1, "a", true},
		"there is another place":                  {[]seen{{"a", 4, false}, {"b", 1, false}}, 2, "b", true},
		"the cache shows it":                      {[]seen{{"a", 5, true}, {"b", 1, false}}, 1, "b", false},
		"the cache shows that it was given back":  {[]seen{{"a", 6, false}, {"b", 1, false}}, 1, "b", true},
		"the task is gone":                        {[]seen{{"b", 1, false}}, 1, "b", true},
		"another one holds the other place":       {[]seen{{"a", 4, false}, {"b", 1, false}, {"c", 3, true}}, 2, "b", false},
		"more hold places than a lowered maximum": {[]seen{{"a", 5, true}, {"b", 1, false}, {"c", 3, true}}, 1, "b", false},
		"one of those keeps its own":              {[]seen{{"a", 5, true}, {"c", 3, true}}, 1, "c", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := &rooms{}
			if err := r.give(port, "a", occupied(seen{"a", 4, false}), 1, 5); err != nil {
				t.Fatal(err)
			}
			if got := r.has(port, c.asks, occupied(c.cache...), c.places); got != c.want {
				t.Errorf("%s has a place or could get one: %v, want %v", c.asks, got, c.want)
			}
			if err := r.give(port, c.asks, occupied(c.cache...), c.places, 9); (err == nil) != c.want {
				t.Errorf("it is given one: %v, want %v", err, c.want)
			}
			if other := (room{contractRoom, "other", "port"}); !r.has(other, "x", occupied(), 1) {
				t.Error("the room of that name in another namespace is full as well")
			}
		})
	}
}

func TestARoomGivesNoMorePlacesThanItHasHoweverFarTheCacheIsBehind(t *testing.T) {
	r, lead := &rooms{}, room{leadRoom, "default", "port"}
	cache := []seen{}
	for i := range 10 {
		cache = append(cache, seen{name: fmt.Sprint(i), sequence: 1})
	}
	given := 0
	for i := range 10 {
		if r.give(lead, types.UID(fmt.Sprint(i)), occupied(cache...), 3, 2) == nil {
			given++
		}
	}
	if given != 3 {
		t.Errorf("%d places were given away, of 3", given)
	}
}

func TestARoomThatIsShownIsForgotten(t *testing.T) {
	r, port := &rooms{}, room{contractRoom, "default", "port"}
	if err := r.give(port, "a", occupied(seen{"a", 1, false}), 1, 2); err != nil {
		t.Fatal(err)
	}
	r.has(port, "b", occupied(seen{"a", 2, true}), 1)
	if len(r.given) != 0 {
		t.Errorf("%v is still remembered", r.given)
	}
}

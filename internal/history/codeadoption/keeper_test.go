package codeadoption_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/testr"

	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/codeadoption"
)

// adoptions are those that the history has, in the order of the former tasks' UIDs.
type adoptions []history.TaskAdoption

func (all adoptions) Adoptions(_ context.Context, after string, limit int) ([]history.TaskAdoption, error) {
	i, _ := slices.BinarySearchFunc(all, after, func(a history.TaskAdoption, uid string) int { return strings.Compare(a.Former.UID, uid) })
	if i < len(all) && all[i].Former.UID == after {
		i++
	}
	return all[i:min(len(all), i+limit)], nil
}

// gitstore has what it was asked to adopt, until it is restored from an older copy.
type gitstore struct {
	has   map[gitstoreapi.TaskAdoption]bool
	asked int
	down  bool
	// full: it has no room for adoptions.
	full bool
	// brings: an adoption brings those of the tasks before the former one.
	brings bool
	// fails is an adoption that cannot be carried out.
	fails gitstoreapi.TaskAdoption
}

func (g *gitstore) LackingAdoptions(_ context.Context, known []gitstoreapi.TaskAdoption) ([]gitstoreapi.TaskAdoption, error) {
	switch {
	case g.down:
		return nil, errors.New("it is down")
	case len(known) > gitstoreapi.MaxAdoptions:
		return nil, errors.New("too many at once")
	}
	return slices.DeleteFunc(slices.Clone(known), func(a gitstoreapi.TaskAdoption) bool { return g.has[a] }), nil
}

func (g *gitstore) AdoptTask(_ context.Context, a gitstoreapi.TaskAdoption) (gitstoreapi.Adoption, error) {
	g.asked++
	if g.full {
		return gitstoreapi.Adoption{}, gitstoreapi.New(gitstoreapi.QuotaExceeded, "ask for a larger one")
	}
	if a == g.fails {
		return gitstoreapi.Adoption{}, errors.New("the record is damaged")
	}
	for a := a; ; a.Former = fmt.Sprintf("former-%d", a.Former[len(a.Former)-1]-'0'-1) {
		g.has[a] = true
		if !g.brings || a.Former == "former-0" {
			break
		}
	}
	return gitstoreapi.Adoption{Refs: 1}, nil
}

func TestARestoredGitstoreIsAskedAgainForWhatItHasForgotten(t *testing.T) {
	const count = 2*gitstoreapi.MaxAdoptions + 3
	var all adoptions
	for n := range count {
		all = append(all, history.TaskAdoption{
			Task: history.Key{Namespace: "team@anew", UID: fmt.Sprintf("task-%d", n)}, Former: history.FormerTask{UID: fmt.Sprintf("former-%04d", n), NamespaceUID: "anew"},
		})
	}
	code := &gitstore{has: map[gitstoreapi.TaskAdoption]bool{}}
	keeper := codeadoption.Keeper{Store: all, Code: code, Log: testr.New(t)}
	keep := func(want int) {
		t.Helper()
		code.asked = 0
		if err := keeper.Keep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if code.asked != want {
			t.Errorf("%d adoptions were asked for, want %d", code.asked, want)
		}
	}
	keep(count)
	keep(0)
	forgotten := gitstoreapi.TaskAdoption{Namespace: "team@anew", UID: "task-2001", Former: "former-2001", NamespaceUID: "anew"}
	delete(code.has, forgotten)
	keep(1)
	if !code.has[forgotten] {
		t.Error("it was not the one that the gitstore lacked")
	}
	code.down = true
	if err := keeper.Keep(t.Context()); !errors.Is(err, history.ErrUnavailable) {
		t.Errorf("while the gitstore is down: %v", err)
	}
}

// FormerTasks are those of a task that has adopted all.
func (all adoptions) FormerTasks(context.Context, string) (formers []history.FormerTask, _ error) {
	for _, a := range all {
		formers = append(formers, a.Former)
	}
	return formers, nil
}

// three are the adoptions of one task, of which the first fails.
func three() (adoptions, *gitstore) {
	var all adoptions
	for n := range 3 {
		all = append(all, history.TaskAdoption{Task: history.Key{Namespace: "team", UID: "task"}, Former: history.FormerTask{UID: fmt.Sprintf("former-%d", n)}})
	}
	return all, &gitstore{has: map[gitstoreapi.TaskAdoption]bool{}, fails: gitstoreapi.TaskAdoption{Namespace: "team", UID: "task", Former: "former-0"}}
}

func TestAnAdoptionThatFailsKeepsNoOtherFromBeingCarriedOutAgain(t *testing.T) {
	all, code := three()
	keeper := codeadoption.Keeper{Store: all, Code: code, Log: testr.New(t)}
	var asked []int
	for range 6 {
		before := code.asked
		if err := keeper.Keep(t.Context()); err != nil {
			t.Fatal(err)
		}
		asked = append(asked, code.asked-before)
	}
	if len(code.has) != 2 {
		t.Errorf("the gitstore has %v", code.has)
	}
	if want := []int{3, 0, 1, 0, 0, 0}; !slices.Equal(asked, want) {
		t.Errorf("in each round %v were asked for, want %v: less and less often for the one that fails", asked, want)
	}
	code.fails = gitstoreapi.TaskAdoption{}
	if err := keeper.Keep(t.Context()); err != nil || len(code.has) != 3 {
		t.Errorf("once it can be carried out, the gitstore has %v: %v", code.has, err)
	}
}

// One adoption brings what the former task had adopted itself, so that one request is enough.
func TestAChainOfFormersNeedsOneAdoption(t *testing.T) {
	all, code := three()
	code.brings, code.fails = true, gitstoreapi.TaskAdoption{}
	if err := codeadoption.Adopt(t.Context(), all, code, all[0].Task, testr.New(t)); err != nil || code.asked != 1 || len(code.has) != 3 {
		t.Errorf("%d were asked for, the gitstore has %v: %v", code.asked, code.has, err)
	}
	// The keeper does not know which is the newest.
	code = &gitstore{has: map[gitstoreapi.TaskAdoption]bool{}, brings: true}
	slices.Reverse(all)
	keeper := codeadoption.Keeper{Store: page(all), Code: code, Log: testr.New(t)}
	if err := keeper.Keep(t.Context()); err != nil || code.asked != 1 || len(code.has) != 3 {
		t.Errorf("%d were asked for, the gitstore has %v: %v", code.asked, code.has, err)
	}
}

// page are adoptions that are listed once, in any order.
type page []history.TaskAdoption

func (p page) Adoptions(_ context.Context, after string, _ int) ([]history.TaskAdoption, error) {
	if after != "" {
		return nil, nil
	}
	return p, nil
}

// It asks for nothing more once the gitstore has no room.
func TestATaskAdoptsNothingMoreWithoutRoom(t *testing.T) {
	all, code := three()
	code.full = true
	err := codeadoption.Adopt(t.Context(), all, code, all[0].Task, testr.New(t))
	if !errors.Is(err, history.ErrUnavailable) || gitstoreapi.NoRoom(err) == nil || code.asked != 1 {
		t.Errorf("%d were asked for, and the error is %v", code.asked, err)
	}
}

func TestATaskAdoptsWhatItCan(t *testing.T) {
	all, code := three()
	err := codeadoption.Adopt(t.Context(), all, code, all[0].Task, testr.New(t))
	if !errors.Is(err, history.ErrUnavailable) || !strings.Contains(err.Error(), "damaged") || len(code.has) != 2 {
		t.Errorf("the gitstore has %v, and the error is %v", code.has, err)
	}
}

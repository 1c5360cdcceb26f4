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
	g.has[a] = true
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

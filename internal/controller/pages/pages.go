// Package pages lists objects a few at a time: a tenant may make any number of them, each as large as the
// API server takes one, and all at once are more than the manager's memory holds.
package pages

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Size is how many objects are read from the API server at a time.
const Size = 20

// Each lists the objects that the options select, so many at a time, and hands each page to look, which
// must not keep it. A size of 0 lists all at once, as from the cache, which has them in memory anyway and
// knows no pages.
func Each[L interface {
	*T
	client.ObjectList
}, T any](ctx context.Context, reader client.Reader, size int64, look func(page L), options ...client.ListOption) error {
	for next := ""; ; {
		page := L(new(T))
		if err := reader.List(ctx, page, append(options[:len(options):len(options)], client.Limit(size), client.Continue(next))...); err != nil {
			return err
		}
		look(page)
		if next = page.GetContinue(); size == 0 || next == "" {
			return nil
		}
	}
}

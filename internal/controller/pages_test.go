package controller_test

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// inPages is the API server as the controllers of all specs read it: it lists nothing whole. A tenant may
// make any number of objects, each as large as the API server takes one, and all at once are more than the
// manager's memory holds.
type inPages struct{ client.Reader }

func (r inPages) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if (&client.ListOptions{}).ApplyOptions(options).Limit == 0 {
		return fmt.Errorf("a %T is read whole from the API server: read it in pages, by name, or from the cache", list)
	}
	return r.Reader.List(ctx, list, options...)
}

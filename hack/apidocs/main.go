// Command apidocs writes a page for each kind of the API: an example, the columns of
// kubectl get, every field, and every condition with its reasons and what to do about them.
//
// A page contains only what the manifests of the kinds (config/crd/bases), the samples
// (config/samples), the comments of api/v1alpha1/reasons.go and the table of
// internal/reason say. Run it at the top of the repository.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// kinds maps the plural of each kind, which names its manifest, to the name of its page.
func kinds() map[string]string {
	return map[string]string{
		"tasks": "task", "checkpoints": "checkpoint", "forks": "fork", "conversationsnapshots": "conversationsnapshot",
	}
}

func main() {
	for plural, name := range kinds() {
		page, err := renderKind(".", plural, name)
		if err == nil {
			err = os.WriteFile(filepath.Join("api", "docs", name+".md"), []byte(page), 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "apidocs: %s: %v\n", plural, err)
			os.Exit(1)
		}
	}
}

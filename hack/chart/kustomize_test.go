// Package chart_test checks what is generated from the chart for users of kustomize.
package chart_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// TestTheComponentOfRequestersIsToldToBothPrograms: without the flag, each would take names of requesters for made up.
func TestTheComponentOfRequestersIsToldToBothPrograms(t *testing.T) {
	folder := filepath.Join(copyOfConfig(t), "with-requesters")
	overlay := "resources: [../default]\ncomponents: [../requesters]\n"
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, r := range built.Resources() {
		if r.GetKind() != "Deployment" {
			continue
		}
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		var d appsv1.Deployment
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		told[d.Name] = slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--requesters-are-stamped")
	}
	if !told["clew-manager"] || !told["clew-server"] {
		t.Errorf("the flag --requesters-are-stamped is set as %v", told)
	}
}

// copyOfConfig copies the manifests into a temporary folder.
func copyOfConfig(t *testing.T) string {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("../../config")); err != nil {
		t.Fatal(err)
	}
	return folder
}

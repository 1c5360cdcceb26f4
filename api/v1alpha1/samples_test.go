package v1alpha1_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

func TestSamplesAreAccepted(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(files) < 9 {
		t.Fatalf("the samples are %q, error %v", files, err)
	}
	list, err := os.ReadFile("../../config/samples/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{} // files, by kind and name of their object
	for _, file := range files {
		name := filepath.Base(file)
		if name == "kustomization.yaml" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			object := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict(content, &object.Object); err != nil {
				t.Fatal(err)
			}
			key := object.GetKind() + "/" + object.GetName()
			if other := names[key]; other != "" {
				t.Errorf("it and %s are one object, %s: kubectl apply -k refuses both", other, key)
			}
			names[key] = name
			object.SetNamespace("default")
			// Strictly: a field that the schema does not know is refused too.
			strict := client.WithFieldValidation(server.Client, "Strict")
			if err := strict.Create(t.Context(), object, client.DryRunAll); err != nil {
				t.Error(err)
			}
			if !strings.Contains(string(list), "- "+name+"\n") {
				t.Error("kustomization.yaml does not list it")
			}
		})
	}
}

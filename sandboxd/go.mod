module gymtrain.dev/sandboxd

go 1.24
